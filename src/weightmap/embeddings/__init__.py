"""Vocabularies and word vectors."""
