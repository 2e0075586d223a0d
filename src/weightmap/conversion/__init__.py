"""Converting, comparing and quantising whole models."""
