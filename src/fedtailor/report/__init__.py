"""Reports: the pictures and the page that show what runs found."""
