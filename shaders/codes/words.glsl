// Codes of a file, four bytes at a time.
layout(buffer_reference, scalar, buffer_reference_align = 4) readonly restrict buffer Source { uint v[]; };
