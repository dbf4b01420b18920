"""Find the files of a corpus: on disks, in object stores, and in Delta and Iceberg tables."""
