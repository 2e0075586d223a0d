"""Bytes: where they come from and where they go. Nothing else in the package knows descriptors or mappings."""
