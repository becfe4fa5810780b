-- What suits a page on the web and not a manual page.

-- Links to other pages of the documentation lead nowhere: their text stays.
function Link(link)
  if link.target:match("^https?://") then return link end
  return link.content
end

-- A table is wider than a terminal: each row becomes an entry, its further cells paragraphs with their headings.
function Table(tbl)
  local simple = pandoc.utils.to_simple_table(tbl)
  local entries = {}
  for _, row in ipairs(simple.rows) do
    local paragraphs = pandoc.List()
    for column = 2, #row do
      local text = pandoc.utils.blocks_to_inlines(row[column])
      if #text > 0 then
        local heading = pandoc.utils.stringify(simple.headers[column])
        if #row > 2 and heading ~= "" then
          text:insert(1, pandoc.Space())
          text:insert(1, pandoc.Emph({ pandoc.Str(heading .. ":") }))
        end
        paragraphs:insert(pandoc.Para(text))
      end
    end
    table.insert(entries, { pandoc.utils.blocks_to_inlines(row[1]), { paragraphs } })
  end
  return pandoc.DefinitionList(entries)
end
