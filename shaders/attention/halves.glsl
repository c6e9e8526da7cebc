// Output in the form of halves.
#include "form/halves.glsl"
#include "attention/half_rows.glsl"
