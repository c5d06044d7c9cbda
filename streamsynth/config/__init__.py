"""Pipeline declarations, deploy files, and their resolution into what runs. Imports no model and no engine."""
