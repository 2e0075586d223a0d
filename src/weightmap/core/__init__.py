"""Opens, views, verifies and saves model files; parts of the package stand beside it and use it."""
