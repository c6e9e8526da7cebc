"""From files to tensors in device memory: readers, staging, uploader, stream."""
