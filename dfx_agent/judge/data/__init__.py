"""Whether batches change between the workers of a job."""
