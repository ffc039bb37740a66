"""Folders in the layout of the Hugging Face hub: `config.json`, `*.safetensors`, a tokenizer."""
