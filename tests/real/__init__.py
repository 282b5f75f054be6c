"""Real engines' publishers in the tests: which releases, how to have one, how to run one."""
