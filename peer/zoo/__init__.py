"""The zoo: more algorithms, data sets, splits and models, found by name as a user's own are."""
