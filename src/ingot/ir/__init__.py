"""The Graph and its elements: dims, dtypes, types, nodes, and the text form. Knows no op by name."""
