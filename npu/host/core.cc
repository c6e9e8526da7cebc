// What a core has before a kernel runs, for kernels that g++ built.
#include <aie_api/aie.hpp>

extern "C" void core_default_rounding() {
  aie::current_rounding = aie::rounding_mode::floor;
  aie::rounded_down = 0;
}

// How many values have changed by rounding down since then.
extern "C" uint64_t core_rounded_down() { return aie::rounded_down; }

// How many tile products there were in this thread, and in how many cycles, until now.
extern "C" uint64_t core_tile_products() { return aie::tile_products; }
extern "C" uint64_t core_tile_cycles() { return aie::tile_cycles; }
