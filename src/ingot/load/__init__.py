"""Foreign models -> Graph; each format is a package of its own, imported when it is asked for."""
