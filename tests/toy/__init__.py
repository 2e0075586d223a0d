"""A small read-only format, the worked example of docs/formats.md. tests/contract/test_toy.py puts it into place."""
