"""The Graph and its parts: dims, dtypes, types, nodes, and the text form. Knows no op by name."""
