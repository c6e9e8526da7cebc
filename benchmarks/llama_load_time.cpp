/* How long llama.cpp takes from nothing to a first token: load.py and first_token_load.py run it by --llama.

       llama_load_time FILE.gguf

   It prints one line: `init=0.123s load=1.234s context=0.012s first_decode=0.045s device=NAME`. `init` finds back ends
   and devices; `load` reads the file, all layers onto the first GPU, and makes its vocabulary; `context` makes one of
   512 tokens; `first_decode` processes one token and waits for its logits. All is one process, in this order. Without a
   GPU it ends with an error; GGML_VK_VISIBLE_DEVICES chooses one, a software device too.

   It needs llama.cpp's public headers and libraries alone. With llama.cpp's sources in SOURCE, built by CMake with
   -DGGML_VULKAN=ON and -DBUILD_SHARED_LIBS=ON in BUILD, an absolute path:

       c++ -O2 -std=c++17 -I SOURCE/include -I SOURCE/ggml/include benchmarks/llama_load_time.cpp -o llama_load_time \
           -L BUILD/bin -lllama -lggml -lggml-base -Wl,-rpath,BUILD/bin
*/

#include "ggml-backend.h"
#include "llama.h"

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <memory>

namespace {

constexpr std::int32_t all_layers = 999;
constexpr std::uint32_t num_tokens = 512;

double now_s() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void print_errors(ggml_log_level level, const char * text, void *) {
    if (level == GGML_LOG_LEVEL_ERROR) {
        std::fputs(text, stderr);
    }
}

int fail(const char * what, const char * file) {
    std::fprintf(stderr, "llama_load_time: %s: %s failed\n", file, what);
    return 1;
}

ggml_backend_dev_t first_gpu() {
    ggml_backend_dev_t device = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_GPU);
    return device ? device : ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_IGPU);
}

}  // namespace

int main(int argc, char ** argv) {
    if (argc != 2) {
        std::fprintf(stderr, "usage: llama_load_time FILE.gguf\n");
        return 2;
    }
    const char * file = argv[1];
    llama_log_set(print_errors, nullptr);

    const double started = now_s();
    ggml_backend_load_all();
    llama_backend_init();
    ggml_backend_dev_t device = first_gpu();
    if (!device) {
        std::fprintf(stderr, "llama_load_time: no GPU; GGML_VK_VISIBLE_DEVICES=0 takes a software device\n");
        return 1;
    }
    const double ready = now_s();

    llama_model_params model_params = llama_model_default_params();
    model_params.n_gpu_layers = all_layers;
    model_params.split_mode = LLAMA_SPLIT_MODE_NONE;
    const std::unique_ptr<llama_model, decltype(&llama_model_free)> model(
        llama_model_load_from_file(file, model_params), llama_model_free);
    if (!model) {
        return fail("loading", file);
    }
    const double loaded = now_s();

    llama_context_params context_params = llama_context_default_params();
    context_params.n_ctx = context_params.n_batch = context_params.n_ubatch = num_tokens;
    const std::unique_ptr<llama_context, decltype(&llama_free)> context(
        llama_init_from_model(model.get(), context_params), llama_free);
    if (!context) {
        return fail("making a context", file);
    }
    const double opened = now_s();

    llama_token token = llama_vocab_n_tokens(llama_model_get_vocab(model.get())) / 2;
    if (llama_decode(context.get(), llama_batch_get_one(&token, 1)) != 0) {
        return fail("decoding a token", file);
    }
    llama_synchronize(context.get());
    const double decoded = now_s();

    std::printf("init=%.3fs load=%.3fs context=%.3fs first_decode=%.3fs device=%s\n", ready - started, loaded - ready,
                opened - loaded, decoded - opened, ggml_backend_dev_description(device));
    return 0;
}
