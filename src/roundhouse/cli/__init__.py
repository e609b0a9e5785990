"""What users type. Parse, build configs, call one function."""
