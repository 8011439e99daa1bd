"""One sample as soon as possible: schedules, a search among them, and what none of them can be shorter than."""
