"""Model shapes from the configurations of Hugging Face transformers."""
