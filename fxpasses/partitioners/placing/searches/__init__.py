"""The searches for a placement whose budgets hold in the predicted memory, and what is said where there is none."""
