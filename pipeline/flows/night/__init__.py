"""Run a night, from the corpus to a published release; plan, check, report, measure and compare releases."""
