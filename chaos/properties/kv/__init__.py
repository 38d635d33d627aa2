"""Properties of KV memory."""
