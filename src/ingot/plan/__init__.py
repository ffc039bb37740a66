"""Numbers for a Lowered program: order, addresses, barriers. The same input gives the same plan."""
