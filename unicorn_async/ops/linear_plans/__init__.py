"""Which kernel makes a product with weights, and how it is cut: rules, and what tuning may choose in their place."""
