# attnc: build with `make`, test with `make check`. BUILD names the folder for everything that is made.
#
#   all            attnc, libattnc.a (the compiler from C), libattnrt.a and .so (the runtime, without LLVM)
#   deps           installs what is missing to build and test
#   demo           ReLU attention from source to numbers
#   install        the command, libraries, headers and man page into PREFIX (DESTDIR is honoured)
#   clean          removes BUILD and BUILD-asan
#
#   check          every test that needs no GPU and no browser
#   check-asan     the same under the address and undefined behaviour sanitizers
#   check-browser  the tests of the playground, in Chromium
#   check-gpu      the tests that need a GPU
#   check-math     functions of f32 over all arguments
#   fuzz           mutated sources, tile programs, artifacts, arrays and messages of editors (SECONDS=60)
#   fuzz-variants  random variants (N=1000 SEED=1 DEVICE=cpu|cuda|amd)
#   bench          the benchmarks, on the CPU and on the GPU if there is one
#   lint, format-check, format    the style checks; format also lays sources in the language out
#
#   playground     BUILD/playground/index.html: one page, for a file or any static host
#   wasm           what the page runs: the language service as WebAssembly, BUILD/playground/attnc.wasm
#   wheel          the Python package with the command and the library in it, into BUILD/dist
#   vscode         an extension of VS Code, BUILD/attn.vsix
#   editors        the generated parts of tools/editors, which are committed
#   gallery        docs/gallery, from the library (PLAYGROUND=ADDRESS of the page that its links open)
#
# STATIC=1 links LLVM into attnc: 70 MB, starts 10 ms faster, needs no LLVM at run time. STATIC=0 links the shared LLVM. Without STATIC, the
# first is tried, and the second if it fails.
BUILD   ?= build
CC      ?= gcc
PREFIX  ?= /usr/local
VERSION := 0.1.0
# Tools are chosen by their versions, because another version may come first on the PATH. If there is none, the rule of llvm.inc says so.
ifndef LLVM_CONFIG
LLVM_CONFIG := $(shell tests/tools.sh llvm-config 2>/dev/null)
endif
export LLVM_CONFIG
OPT     ?= -O2 -g
WARN    := -Wall -Wextra -Wswitch-enum -Werror -Wno-error=cpp
CFLAGS  ?=
SAN     ?=
CPPFLAGS_ALL := -I. -I$(BUILD) -D_GNU_SOURCE
CFLAGS_ALL   := -std=c11 $(OPT) $(WARN) -fPIC -fvisibility=hidden $(SAN) $(CFLAGS)
LLVM_CFLAGS  := $(filter-out -std=% -D_GNU_SOURCE,$(shell $(LLVM_CONFIG) --cflags 2>/dev/null))
# Loading the shared LLVM takes 10 ms of every run of attnc. (A fixed address would save one more. But attnc reads files of others.)
LLVM_SHARED := $(shell $(LLVM_CONFIG) --ldflags --libs 2>/dev/null)
LLVM_STATIC := $(shell $(LLVM_CONFIG) --ldflags --link-static --libs nvptx amdgpu x86 orcjit passes 2>/dev/null) \
               -Wl,--gc-sections -Wl,-Bstatic -lstdc++ -lz -lzstd -Wl,-Bdynamic -lm -ldl -lpthread
CHECK_CFLAGS = $(shell pkg-config --cflags check)
CHECK_LIBS   = $(shell pkg-config --libs check)

src = $(patsubst %.c,$(BUILD)/%.o,$(wildcard $(1)/*.c))
IR_O       := $(call src,ir)
FRONTEND_O := $(call src,frontend) $(BUILD)/frontend/lex.o $(BUILD)/frontend/gram.o
PASSES_O   := $(call src,passes) $(call src,passes/*)
CODEGEN_O  := $(call src,codegen) $(call src,codegen/*)
RUNTIME_O  := $(call src,runtime)
# The tools without main and the verbs; tests use these, too.
VERBS_O    := $(BUILD)/tools/attnc.o $(patsubst %.c,$(BUILD)/%.o,$(wildcard tools/cmd_*.c))
TOOLS_O    := $(filter-out $(VERBS_O),$(call src,tools))
COMPILER_A := $(BUILD)/libtools.a $(BUILD)/libcodegen.a $(BUILD)/libpasses.a $(BUILD)/libfrontend.a $(BUILD)/libir.a
# What an editor asks of the compiler. Not in libattnc: it needs cJSON.
SERVICE_O  := $(call src,tools/service)
ALL_A      := $(COMPILER_A) $(BUILD)/libattnrt.a
LIBS       := $(LLVM_SHARED) -lm -ldl -lpthread

.PHONY: all playground wheel wasm check run-check check-asan check-browser check-math check-gpu fuzz run-fuzz fuzz-variants bench lint format-check format editors vscode gallery install deps demo clean FORCE
all: $(BUILD)/attnc $(BUILD)/libattnc.a $(BUILD)/libattnrt.a $(BUILD)/libattnrt.so

# ---- libraries and programs
$(BUILD)/libir.a: $(IR_O)
$(BUILD)/libfrontend.a: $(FRONTEND_O)
$(BUILD)/libpasses.a: $(PASSES_O)
$(BUILD)/libcodegen.a: $(CODEGEN_O)
$(BUILD)/libattnrt.a: $(RUNTIME_O)
$(BUILD)/libtools.a: $(TOOLS_O)
$(BUILD)/libservice.a: $(SERVICE_O)
$(BUILD)/libattnc.a: $(TOOLS_O) $(CODEGEN_O) $(PASSES_O) $(FRONTEND_O) $(IR_O) $(RUNTIME_O)
$(BUILD)/%.a:
	@mkdir -p $(@D); rm -f $@
	ar qcs $@ $^
$(BUILD)/libattnrt.so: $(RUNTIME_O)
	$(CC) $(SAN) -shared -Wl,-soname,libattnrt.so.0 -o $@.0 $^ -ldl -lpthread -lm
	ln -sf $(@F).0 $@
# Linking is the best test of whether LLVM's static libraries, and the libraries that they need, are installed.
LINK_ATTNC = $(CC) $(SAN) $(LDFLAGS) -o $@ $(VERBS_O) $(BUILD)/libservice.a $(ALL_A) -Wl,-rpath,'$$ORIGIN' -lcjson
$(BUILD)/attnc: $(VERBS_O) $(BUILD)/libservice.a $(ALL_A)
ifeq ($(STATIC),1)
	$(LINK_ATTNC) $(LLVM_STATIC)
else ifneq ($(STATIC)$(SAN),)
	$(LINK_ATTNC) $(LIBS)
else
	$(LINK_ATTNC) $(LLVM_STATIC) 2>/dev/null || $(LINK_ATTNC) $(LIBS)
endif

$(BUILD)/codegen/%.o $(BUILD)/tests/unit/codegen_%.o $(BUILD)/tests/gcn/decode.o $(BUILD)/tests/math/code.o: CPPFLAGS_ALL += $(LLVM_CFLAGS)
$(BUILD)/tests/unit/%.o $(BUILD)/tests/main.o: CPPFLAGS_ALL += $(CHECK_CFLAGS)
$(BUILD)/tests/math/m%.o: CFLAGS_ALL += -O3 -march=native -fno-math-errno -fno-trapping-math
$(BUILD)/tools/peak.o: CFLAGS_ALL += -ffp-contract=fast # a multiply and an add of the probe are one instruction
$(BUILD)/%.o: %.c
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS_ALL) $(CPPFLAGS) $(CFLAGS_ALL) -MMD -MP -c $< -o $@
$(BUILD)/%.o: $(BUILD)/%.c
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS_ALL) -Ifrontend $(CPPFLAGS) $(CFLAGS_ALL) -Wno-unused-function -MMD -MP -c $< -o $@
$(BUILD)/frontend/lex.c: frontend/lex.l $(BUILD)/frontend/gram.c
	@mkdir -p $(@D)
	flex -o $@ $<
$(BUILD)/frontend/gram.c: frontend/gram.y
	@mkdir -p $(@D)
	bison -Wall -Werror -Wno-yacc -d -o $@ $<
$(BUILD)/frontend/syntax.o $(BUILD)/tests/editors/tokens.o: $(BUILD)/frontend/gram.c

# The folder of this LLVM's tools. The file is written only if it changes; then everything that includes LLVM's headers is compiled again.
# A machine that only tests a finished build needs no LLVM.
$(BUILD)/llvm.inc: FORCE
	@mkdir -p $(@D)
	@config=$$(tests/tools.sh llvm-config) || exec [ -e $@ ]; echo "#define LLVM_BINDIR \"$$($$config --bindir)\"" >$@.new; \
	    if cmp -s $@.new $@; then rm $@.new; else mv $@.new $@; fi

$(CODEGEN_O) $(filter %/decode.o,$(call src,tests/gcn)) $(filter $(BUILD)/tests/unit/codegen_%,$(call src,tests/unit)): $(BUILD)/llvm.inc

# The std modules are part of the compiler, as C strings.
$(BUILD)/tools/library.o: $(BUILD)/stdlib.inc
$(BUILD)/stdlib.inc: $(wildcard stdlib/*.attn)
	@mkdir -p $(@D)
	for f in $^; do printf 'STD_MODULE("<std>/%s",\n' $${f#stdlib/}; \
	    sed 's/[\\"]/\\&/g; s/.*/    "&\\n"/' $$f; echo ')'; done > $@

# What `attnc new` writes.
$(BUILD)/tools/cmd_new.o: $(BUILD)/template.inc
$(BUILD)/template.inc: $(wildcard tools/template/*)
	@mkdir -p $(@D)
	for f in $^; do printf 'TEMPLATE("%s",\n' $${f##*/}; sed 's/[\\"]/\\&/g; s/.*/    "&\\n"/' $$f; echo ')'; done > $@

# ---- the compiler in a browser: what needs neither LLVM nor files, as WebAssembly (tools/playground/wasm.js runs it). The stack is for
# formulas and calls as deep as the language allows.
WASM_CC = $(eval WASM_CC := $$(or $$(shell tests/tools.sh clang),false))$(WASM_CC)
WASM_TOOLS := library maskmap signature decay tensor draw
WASM_C := $(wildcard ir/*.c frontend/*.c passes/*.c passes/*/*.c tools/service/*.c) $(WASM_TOOLS:%=tools/%.c) tools/playground/wasm.c
WASM_O := $(WASM_C:%.c=$(BUILD)/wasm/%.o) $(addprefix $(BUILD)/wasm/,frontend/lex.o frontend/gram.o cJSON.o)
WASM_FLAGS := --target=wasm32-wasi -std=c11 -O2 -ffunction-sections -fdata-sections -D_GNU_SOURCE -DVERSION='"$(VERSION)"' \
              -I. -I$(BUILD) -Ifrontend -isystem build/tools/cjson
wasm: $(BUILD)/playground/attnc.wasm
$(BUILD)/playground/attnc.wasm: $(WASM_O)
	@mkdir -p $(@D)
	$(WASM_CC) --target=wasm32-wasi -mexec-model=reactor -Wl,--gc-sections,--strip-all,--stack-first,-z,stack-size=8388608 \
	    -Wl,--max-memory=1073741824 -o $@ $^
$(BUILD)/wasm/%.o: %.c
	@mkdir -p $(@D)
	$(WASM_CC) $(WASM_FLAGS) -MMD -MP -c $< -o $@
$(BUILD)/wasm/%.o: $(BUILD)/%.c
	@mkdir -p $(@D)
	$(WASM_CC) $(WASM_FLAGS) -c $< -o $@
$(BUILD)/wasm/cJSON.o: build/tools/cjson/cjson/cJSON.c
	@mkdir -p $(@D)
	$(WASM_CC) $(WASM_FLAGS) -c $< -o $@
$(BUILD)/wasm/tools/library.o: $(BUILD)/stdlib.inc
build/tools/cjson/cjson/cJSON.c build/tools/vscode-languageserver-node/License.txt:
	tests/deps.sh

# ---- the playground: the page with all that it needs in one file
PAGE_PYTHON = $$(tests/tools.sh python3 'fontTools, brotli')
playground: $(BUILD)/playground/index.html
$(BUILD)/playground/index.html: $(BUILD)/playground/attnc.wasm tools/esbuild.py $(wildcard tools/playground/*.* tools/playground/panes/*) $(wildcard stdlib/*.attn)
	python=$(PAGE_PYTHON) && $$python tools/playground/bundle.py $(@D) $< $@

# ---- tests. Every program ends with the line `N passed, N failed`, and fails if a test failed.
UNIT_O  := $(call src,tests/unit) $(BUILD)/tests/main.o $(addprefix $(BUILD)/tests/support/,backward_eval.o chunk_eval.o gradient.o random.o reformat.o workers.o)
GEN_O   := $(call src,tests/gen) $(call src,tests/support) $(filter-out %/main.o %/mutate.o %/nan.o %/subject.o,$(call src,tests/gcn))
RUN_O   := $(call src,tests/run) $(call src,tests/support)
GCN_O   := $(call src,tests/gcn) $(call src,tests/support)
MATH_O  := $(call src,tests/math)
FUZZ_O  := $(call src,tests/fuzz)
TESTS   := $(addprefix $(BUILD)/tests/check_,unit lang run gen gcn math) $(BUILD)/tests/editors/tokens
N       ?= 1000
SEED    ?= 1
JOBS    ?= $(shell nproc)
$(BUILD)/tests/check_unit: $(UNIT_O) $(ALL_A)
	$(CC) $(SAN) -o $@ $(UNIT_O) $(ALL_A) $(LIBS) $(CHECK_LIBS)
$(BUILD)/tests/check_lang: $(call src,tests/lang) $(ALL_A)
	$(CC) $(SAN) -o $@ $^ $(LIBS)
$(BUILD)/tests/check_run: $(RUN_O) $(ALL_A)
	$(CC) $(SAN) -o $@ $(RUN_O) $(ALL_A) $(LIBS)
$(BUILD)/tests/check_gen: $(GEN_O) $(ALL_A)
	$(CC) $(SAN) -o $@ $(GEN_O) $(ALL_A) $(if $(filter 1,$(STATIC)),$(LLVM_STATIC),$(LIBS))
$(BUILD)/tests/check_gcn: $(GCN_O) $(ALL_A)
	$(CC) $(SAN) -o $@ $(GCN_O) $(ALL_A) $(LIBS)
$(BUILD)/tests/check_math: $(MATH_O) $(ALL_A)
	$(CC) $(SAN) -o $@ $(MATH_O) $(ALL_A) $(LIBS)
$(BUILD)/tests/editors/tokens: $(BUILD)/tests/editors/tokens.o $(BUILD)/libfrontend.a $(BUILD)/libir.a
	$(CC) $(SAN) -o $@ $^ -lm
$(BUILD)/tests/fuzz/service: $(BUILD)/tests/fuzz/service.o $(BUILD)/libservice.a $(ALL_A)
	$(CC) $(SAN) -o $@ $^ -lcjson $(LIBS)
$(BUILD)/tests/fuzz/%: $(BUILD)/tests/fuzz/%.o $(BUILD)/tests/support/reformat.o $(ALL_A)
	$(CC) $(SAN) -o $@ $^ $(LIBS)

# make reads LLVM's flags when it starts. So what is missing is installed first, and then another make runs the tests.
check:
	tests/deps.sh || echo "what is missing could not be installed: going on without"
	$(MAKE) run-check
run-check: all $(if $(SAN),,wasm) $(TESTS)
	tests/check.sh $(BUILD)
SANITIZED := OPT="-O1 -g" SAN="-fsanitize=address,undefined -fno-omit-frame-pointer" CFLAGS="$(CFLAGS) -Wno-format-truncation"
check-asan:
	SANITIZED=1 QUICK=1 GEN=60 CK_FORK=no ASAN_OPTIONS=detect_leaks=1 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 \
	    $(MAKE) BUILD=$(BUILD)-asan $(SANITIZED) check
check-browser:
	tests/deps.sh browser || echo "what is missing could not be installed: going on without"
	$(MAKE) playground
	BUILD=$(BUILD) /usr/bin/python3 tests/playground/check.py
check-gpu: all $(BUILD)/tests/check_math $(BUILD)/tests/check_gen
	tests/check_gpu.sh $(BUILD)
	tests/sanitize_gpu.sh $(BUILD)
	$(BUILD)/tests/check_gen $(SEED) $(N) --device=cuda --jobs=$(JOBS) --seconds=120 --limit=60 || [ $$? -eq 3 ] # 3: no device
check-math: $(BUILD)/tests/check_math
	$(BUILD)/tests/check_math
fuzz-variants: $(BUILD)/tests/check_gen
	$(BUILD)/tests/check_gen $(SEED) $(N) --jobs=$(JOBS) $(DEVICE:%=--device=%)
fuzz:
	$(MAKE) BUILD=$(BUILD)-asan $(SANITIZED) run-fuzz
run-fuzz: $(FUZZ_O:%.o=%)
	for f in $^; do $$f tests/fuzz $(or $(SECONDS),60) || exit 1; done
bench: all
	tests/bench/cpu.sh $(BUILD)/attnc
	tests/bench/gpu.sh $(BUILD)

# ---- style checks
SOURCES := $(wildcard ir/*.[ch] frontend/*.[ch] passes/*.[ch] passes/*/*.[ch] codegen/*.[ch] codegen/*/*.[ch] runtime/*.[ch] tools/*.[ch] tools/*/*.[ch] tests/*.[ch] tests/*/*.[ch])
CLANG_FORMAT = $(shell tests/tools.sh clang-format || echo false)
lint: $(CODEGEN_O)
	tests/circles.sh $(CODEGEN_O)
	tests/lint.sh
format-check:
	$(CLANG_FORMAT) --dry-run -Werror $(SOURCES)
	[ ! -x $(BUILD)/attnc ] || out=$$(tests/format.sh $(BUILD)/attnc) || { echo "$$out"; false; }
format: $(BUILD)/attnc
	$(CLANG_FORMAT) -i $(SOURCES)
	tests/format.sh $(BUILD)/attnc --write

# ---- editors and the gallery. What is generated is committed: an editor needs no tools to take it, GitHub shows the pages.
editors:
	tools/editors/lists.py
	cd tools/editors/tree-sitter-attn && "$$(../../../tests/tools.sh tree-sitter)" generate --no-bindings
vscode: build/tools/vscode-languageserver-node/License.txt
	@mkdir -p $(BUILD)
	tools/editors/vscode/package.py $(BUILD)/attn.vsix
gallery: all
	"$$(tests/tools.sh python3)" tests/gallery.py $(BUILD) --update || "$$(tests/tools.sh python3)" tests/gallery.py $(BUILD)
deps:
	tests/deps.sh
demo:
	tools/demo.sh $(BUILD)

install: all
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PREFIX)/lib/pkgconfig $(DESTDIR)$(PREFIX)/include \
	    $(DESTDIR)$(PREFIX)/share/man/man1
	install -m 755 $(BUILD)/attnc $(DESTDIR)$(PREFIX)/bin/attnc
	install -m 644 $(BUILD)/libattnrt.a $(BUILD)/libattnc.a $(DESTDIR)$(PREFIX)/lib
	install -m 755 $(BUILD)/libattnrt.so $(DESTDIR)$(PREFIX)/lib/libattnrt.so.0
	ln -sf libattnrt.so.0 $(DESTDIR)$(PREFIX)/lib/libattnrt.so
	install -m 644 runtime/attn.h $(DESTDIR)$(PREFIX)/include/attn.h
	install -m 644 tools/libattnc.h $(DESTDIR)$(PREFIX)/include/attnc.h
	install -m 644 docs/attnc.1 $(DESTDIR)$(PREFIX)/share/man/man1/attnc.1
	printf 'prefix=%s\nName: attnrt\nDescription: runtime of attnc kernels\nVersion: %s\nCflags: -I$${prefix}/include\nLibs: -L$${prefix}/lib -lattnrt\nLibs.private: -ldl -lpthread -lm\n' \
	    '$(PREFIX)' '$(VERSION)' > $(DESTDIR)$(PREFIX)/lib/pkgconfig/attnrt.pc

# Other machines need the LLVM that attnc was linked with, unless it is linked into attnc (STATIC=1); cJSON is in the wheel. The wheel's name tells
# which (python/backend.py).
wheel: all
	rm -rf $(BUILD)/dist
	BUILD=$(BUILD) $(shell tests/tools.sh python3 pip || echo python3) -m pip wheel -q --no-deps --disable-pip-version-check -w $(BUILD)/dist .

clean:
	rm -rf $(BUILD) $(BUILD)-asan
-include $(shell find $(BUILD) -name '*.d' -type f 2>/dev/null)
.SECONDARY:
