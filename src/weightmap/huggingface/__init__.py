"""Model directories of Hugging Face: configuration, tokenizer, files that go with the weights."""
