// What a core has before a kernel runs, for kernels that g++ built.
#include <aie_api/aie.hpp>

extern "C" void core_default_rounding() { aie::set_rounding(aie::rounding_mode::floor); }
