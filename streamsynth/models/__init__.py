"""Model families, one folder each. Importing a family's `pipeline` module imports no model."""
