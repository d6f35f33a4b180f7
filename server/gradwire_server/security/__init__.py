"""Authorization of calls by tokens and certificates, and TLS."""
