"""A whole small format, only read: the worked example of docs/formats.md. `tests/test_toy.py` puts it into place."""
