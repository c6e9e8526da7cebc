// Output in the form of fragments.
#include "form/fragments.glsl"
#include "attention/half_rows.glsl"
