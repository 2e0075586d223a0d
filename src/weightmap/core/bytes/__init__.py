"""Input and output of bytes. Nothing else in the package knows descriptors or mappings."""
