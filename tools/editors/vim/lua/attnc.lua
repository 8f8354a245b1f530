-- attnc.lua: require('attnc').setup() starts `attnc lsp` for .attn files, on Neovim 0.7 and later.
-- setup { cmd = { '/path/to/attnc', 'lsp' } } names another command.
local M = {}

local function start_by_hand(config) -- before 0.11
  vim.api.nvim_create_autocmd('FileType', {
    pattern = config.filetypes,
    callback = function(event)
      local found = vim.fn.finddir('.git', vim.fn.expand('%:p:h') .. ';')
      local root = found ~= '' and vim.fn.fnamemodify(found, ':p:h:h') or vim.fn.expand('%:p:h')
      local one = { name = 'attnc', cmd = config.cmd, root_dir = root }
      if vim.lsp.start then
        vim.lsp.start(one)
        return
      end
      for _, client in pairs(vim.lsp.get_active_clients()) do -- 0.7
        if client.name == 'attnc' and client.config.root_dir == root then
          vim.lsp.buf_attach_client(event.buf, client.id)
          return
        end
      end
      vim.lsp.buf_attach_client(event.buf, vim.lsp.start_client(one))
    end,
  })
end

function M.setup(options)
  local config = { cmd = { 'attnc', 'lsp' }, filetypes = { 'attn' }, root_markers = { '.git' } }
  for key, value in pairs(options or {}) do
    config[key] = value
  end
  if vim.lsp.enable then
    vim.lsp.config('attnc', config)
    vim.lsp.enable('attnc')
  else
    start_by_hand(config)
  end
end

return M
