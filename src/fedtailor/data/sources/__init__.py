"""The data sets known by name: one file each, and the file's name is the data set's."""
