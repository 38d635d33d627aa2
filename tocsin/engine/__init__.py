"""What runs the model: Transformers' own code over paged KV memory, one step at a time."""
