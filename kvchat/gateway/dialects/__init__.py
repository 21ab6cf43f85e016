"""API dialects: parsing and conversion of requests, and correction of usage and model names in responses."""
