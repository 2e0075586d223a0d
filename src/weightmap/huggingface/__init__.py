"""Hugging Face model directories: configuration, tokenizer, and files that belong to the weights."""
