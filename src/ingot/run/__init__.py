"""From a plan to numbers: one file per executor."""
