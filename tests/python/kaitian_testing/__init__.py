"""What the multi-process tests share: a pool of rank processes and the exact data that they reduce."""
