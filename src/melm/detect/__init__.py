"""What a learned detector finds: views, branch fusion, suppression -> Detections."""
