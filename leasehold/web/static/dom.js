// Makes elements. Attributes that are null or false are left out, and so are children that are null.
export function svg(name, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);
}

export function html(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

export function set(element, attributes) {
  for (const [key, value] of Object.entries(attributes)) {
    if ((value ?? false) !== false) element.setAttribute(key, value === true ? "" : value);
  }
  return element;
}

function fill(element, attributes, children) {
  element.append(...children.filter((child) => child !== null));
  return set(element, attributes);
}
