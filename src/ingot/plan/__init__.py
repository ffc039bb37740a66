"""Plan a Lowered program: step order, addresses, barriers. The same input gives the same plan."""
