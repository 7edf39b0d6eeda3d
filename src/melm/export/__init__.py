"""What other tools read: tables, COCO, VOC."""
