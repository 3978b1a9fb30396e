"""Documents for people: pages, tables and traces from typed values."""
