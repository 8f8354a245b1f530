# attnc: build with `make`, test with `make check`. BUILD names the folder for everything that is made.
BUILD   ?= build
CC      ?= gcc
PREFIX  ?= /usr/local
LLVM_CONFIG ?= $(firstword $(shell command -v llvm-config-19 llvm-config-20 llvm-config-21 2>/dev/null) llvm-config-19)
OPT     ?= -O2 -g
WARN    := -Wall -Wextra -Wswitch-enum -Werror -Wno-error=cpp
CFLAGS  ?=
SAN     ?=
CPPFLAGS_ALL := -I. -I$(BUILD) -D_GNU_SOURCE
CFLAGS_ALL   := -std=c11 $(OPT) $(WARN) -fPIC -fvisibility=hidden $(SAN) $(CFLAGS)
LLVM_CFLAGS  := $(filter-out -std=% -D_GNU_SOURCE,$(shell $(LLVM_CONFIG) --cflags 2>/dev/null))
ifeq ($(STATIC),1)
LLVM_LIBS := $(shell $(LLVM_CONFIG) --ldflags --link-static --libs nvptx x86 orcjit passes 2>/dev/null) \
             -Wl,--gc-sections -Wl,-Bstatic -lstdc++ -lz -lzstd -Wl,-Bdynamic -lm -ldl -lpthread
else
LLVM_LIBS := $(shell $(LLVM_CONFIG) --ldflags --libs 2>/dev/null)
endif

src = $(patsubst %.c,$(BUILD)/%.o,$(wildcard $(1)/*.c))
IR_O       := $(call src,ir)
FRONTEND_O := $(call src,frontend) $(BUILD)/frontend/lex.o $(BUILD)/frontend/gram.o
PASSES_O   := $(call src,passes)
CODEGEN_O  := $(call src,codegen)
RUNTIME_O  := $(call src,runtime)

all: $(BUILD)/attnc $(BUILD)/libattnrt.a $(BUILD)/libattnrt.so

$(BUILD)/libir.a: $(IR_O)
$(BUILD)/libfrontend.a: $(FRONTEND_O)
$(BUILD)/libpasses.a: $(PASSES_O)
$(BUILD)/libcodegen.a: $(CODEGEN_O)
$(BUILD)/libattnrt.a: $(RUNTIME_O)
$(BUILD)/%.a:
	@mkdir -p $(@D); rm -f $@
	ar rcs $@ $^

$(BUILD)/codegen/%.o $(BUILD)/tests/unit/codegen_%.o: CPPFLAGS_ALL += $(LLVM_CFLAGS)
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

-include $(shell find $(BUILD) -name '*.d' 2>/dev/null)
.PHONY: all check clean
.SECONDARY:
clean:
	rm -rf $(BUILD)
