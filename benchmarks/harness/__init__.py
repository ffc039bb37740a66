"""How every question measures and reports: engines in processes of their own, interleaved rounds, pages of Markdown."""
