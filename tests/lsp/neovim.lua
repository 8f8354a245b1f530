-- neovim.lua: what Neovim's own client gets of `attnc lsp`: diagnostics, a change, hover, completion, definition, rename, formatting. Writes
-- seen.json and the buffer.
local seen = {}
local function messages()
  local out = {}
  for _, d in ipairs(vim.diagnostic.get(0)) do table.insert(out, d.message) end
  return out
end
local function ask(method, line, text, more)
  local row = vim.fn.search(line, 'nw') - 1
  local column = vim.fn.getline(row + 1):find(text, 1, true) - 1
  local params = vim.tbl_extend('force', {
    textDocument = vim.lsp.util.make_text_document_params(0),
    position = { line = row, character = column },
  }, more or {})
  local answer = vim.lsp.buf_request_sync(0, method, params, 10000)
  return answer[1].result
end

local ok, why = pcall(function()
  local id = vim.lsp.start_client({ name = 'attnc', cmd = { os.getenv('ATTNC'), 'lsp' } })
  vim.lsp.buf_attach_client(0, id)
  vim.wait(10000, function() return #messages() > 0 end, 10)
  seen.before = messages()
  vim.cmd('%s/sofmax/softmax/')
  vim.wait(10000, function() return #messages() == 0 end, 10)
  seen.after = messages()
  seen.hover = ask('textDocument/hover', 'mask(b', 'WINDOW').contents.value
  seen.completion = {}
  for _, item in ipairs(ask('textDocument/completion', 'modify(', 'twice(s)').items) do table.insert(seen.completion, item.label) end
  seen.definition = ask('textDocument/definition', 'normalize(', 'softmax').uri
  vim.lsp.util.apply_workspace_edit(ask('textDocument/rename', 'mask(b', 'WINDOW', { newName = 'W' }), 'utf-16')
  vim.lsp.buf.formatting_sync({}, 10000)
  vim.cmd('write')
  vim.lsp.stop_client(id)
end)
if not ok then seen.error = tostring(why) end
local file = io.open('seen.json', 'w')
file:write(vim.fn.json_encode(seen))
file:close()
vim.cmd(ok and 'qall!' or 'cquit 1')
