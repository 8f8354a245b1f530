-- attnc.lua: the language server, as vim.lsp.enable('attnc') of Neovim 0.11 reads it.
return { cmd = { 'attnc', 'lsp' }, filetypes = { 'attn' }, root_markers = { '.git' } }
