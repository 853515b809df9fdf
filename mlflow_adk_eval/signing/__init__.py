"""Keys and identities, and what they sign."""
